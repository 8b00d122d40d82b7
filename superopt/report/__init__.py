"""What an optimization did, as plain data (`data`), text (`text`) and HTML (`html`)."""
