"""A configuration of ReFrame for a Slurm cluster without accounting; adapt the names, or use your site's own."""

site_configuration = {
    "systems": [
        {
            "name": "cluster",
            "hostnames": [".*"],
            "partitions": [
                {
                    "name": "nodes",
                    "scheduler": "squeue",  # slurm, where accounting (sacct) is there
                    "launcher": "local",  # the battery starts its own ranks
                    "environs": ["plain"],
                    "max_jobs": 8,
                }
            ],
        }
    ],
    "environments": [{"name": "plain"}],
}
