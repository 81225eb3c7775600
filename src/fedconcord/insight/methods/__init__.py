"""What a job, a model or a method is found to be: costs, fairness, personal models, leaks."""
