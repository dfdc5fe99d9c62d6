"""A driver of its own: a queue into files, until it is killed or has written all there is."""

import json
import sys
from pathlib import Path
from typing import Any

from orthia.pipeline.session import build_session
from tests.pipeline.subscription_outputs import started


def main() -> None:
    """Run the query that the one argument describes in JSON."""
    wanted: dict[str, Any] = json.loads(sys.argv[1])
    spark = build_session(
        wanted["master"], settings=wanted["settings"], passwords=wanted["passwords"]
    )
    frame = spark.readStream.format("orthia.subscription").options(**wanted["options"]).load()
    writer = frame.writeStream.option("checkpointLocation", wanted["checkpoint"])
    if wanted["available_now"]:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime="100 milliseconds")
    query = started(writer, wanted["format"], Path(wanted["output"]))
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
