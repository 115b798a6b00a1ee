"""Which replica a conversation should reach: policies in a model of engines, and HAProxy in front of real ones."""
