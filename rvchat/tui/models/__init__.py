"""The models as the application has them: what there is, what comes, what is done with them, and what is said of it."""
