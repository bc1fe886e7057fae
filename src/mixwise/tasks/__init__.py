"""What is asked of a backbone: loss, metrics and how an answer is written, one file a task."""
