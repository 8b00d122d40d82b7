"""What a job starts from: the model, its inputs and sizes, the rules, the request."""
