"""The router's HTTP/1.1 client for engines, made for many short waits on few connections."""
