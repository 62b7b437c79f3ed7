"""Table routes: inbox, effects and position in one database transaction; what is the same in every database lies here."""
