"""What a person learns from results: pages, figures, sentences, advice."""
