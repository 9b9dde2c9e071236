"""Captures and verdicts of the fleet as Parquet files, flattened when they arrive. Needs the extra `report`."""
