"""Compares policies that choose a conversation's replica: in a model of engines, and with HAProxy in front of real
ones."""
