"""The auditor: reads log, destinations and monitor with no code of the worker's bookkeeping."""
