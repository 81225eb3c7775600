"""What makes a federation hard, and what a method does about it: looks at chosen rounds, and one page."""
