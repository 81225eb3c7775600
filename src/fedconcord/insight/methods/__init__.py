"""What methods keep, send and compute, and which objective their average goes down."""
