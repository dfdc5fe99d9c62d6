"""The console: pages for a browser, made on the server, which work without JavaScript."""
