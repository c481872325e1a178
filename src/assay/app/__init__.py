"""What people run: the command line, monitors, the site of a store."""
