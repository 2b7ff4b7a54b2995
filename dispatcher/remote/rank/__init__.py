"""What is put beside a rank's own program, inside its process; see ``sitecustomize``."""
