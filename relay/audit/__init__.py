"""The auditor: reads log, destinations and monitor with no code of the worker's bookkeeping.

Two things it reads by the workers' own code: what writers without a database decided, and what persons said.
"""
