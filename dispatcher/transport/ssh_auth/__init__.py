"""Host keys and logins."""
