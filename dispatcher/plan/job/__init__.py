"""From a request and hosts to the frozen plan of a job."""
