"""Topic routes: sealed Kafka transactions, and the recovery that finds out what a torn one did."""
