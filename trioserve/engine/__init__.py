"""The engine on trio: request nurseries, choice tasks, the scheduler actor and the device task."""
