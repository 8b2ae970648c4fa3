"""What is wrong with a machine or a job's environment before the job starts."""
