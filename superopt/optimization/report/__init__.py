"""What optimize and rules say in reports."""
