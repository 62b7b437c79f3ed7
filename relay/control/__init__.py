"""What persons see and decide from outside the workers: status, what is in doubt, dead letters, queues."""
