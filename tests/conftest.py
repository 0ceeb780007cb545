from hypothesis import HealthCheck, settings

settings.register_profile("queen", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("queen")
