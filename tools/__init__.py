"""What builds Orthia and writes its documents; nothing of it is installed."""
