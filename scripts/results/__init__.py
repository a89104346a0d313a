"""How the pages and the data of results/ are made: scripts/tables and scripts/reproduce."""
