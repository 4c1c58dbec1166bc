"""Reports on runs, ended or in progress, from their folders."""
