"""How the pages and the data of results/ are made: scripts/tables, scripts/keep and scripts/reproduce."""
