"""What the Spark jobs are made of; needs PySpark, on the driver and on every executor."""
