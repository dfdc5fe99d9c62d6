"""Jobs on journals and failover logs: pure functions from DataFrames to DataFrames.

Their inputs have the columns of ``pipeline.sources.schemas``, whether they come from a data source
or from the Parquet of an export.
"""
