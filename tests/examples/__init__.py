"""The programs and files of examples/, run as their README says."""
