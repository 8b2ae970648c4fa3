"""What is shown of a job: metrics, watchdog, timeline, and the report that is made of it."""
