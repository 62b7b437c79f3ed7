"""The only package that touches the Kafka client."""
