"""What is run on other machines before anything is installed there: POSIX sh."""
