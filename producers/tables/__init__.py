"""Tables that know how complete they are: the properties of a job's commits, and their readers without Spark."""
