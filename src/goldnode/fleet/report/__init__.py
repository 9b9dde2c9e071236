"""The report on a fleet: views in SQL over the Parquet of captures, and documents made from them. Needs the extra `report`."""
