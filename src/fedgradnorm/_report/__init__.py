"""Pictures and tables of what happened; the only room that draws."""
