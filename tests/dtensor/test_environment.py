import pytest

from replicax.dtensor.clients import ClientSettings, client_settings
from replicax.errors import ArgumentError

JOBS = "10.0.0.1:9898,10.0.0.2:9898"


@pytest.mark.parametrize(
    ("environment", "settings"),
    [
        ({}, ClientSettings()),
        ({"DTENSOR_JOBS": "", "DTENSOR_CLIENT_ID": "", "DTENSOR_JOB_NAME": ""}, ClientSettings()),
        ({"DTENSOR_JOBS": "host:1"}, ClientSettings(("host:1",))),
        (
            {"DTENSOR_JOBS": "a.b:1, [::1]:65535", "DTENSOR_CLIENT_ID": "1", "DTENSOR_JOB_NAME": "mine"},
            ClientSettings(("a.b:1", "[::1]:65535"), 1, "mine"),
        ),
        ({"DTENSOR_ENABLE_HEARTBEAT": "False"}, ClientSettings(heartbeat=False)),
        ({"DTENSOR_ENABLE_HEARTBEAT": "1"}, ClientSettings(heartbeat=True)),
    ],
)
def test_the_environment_tells_who_is_who(environment, settings):
    assert client_settings(environment) == settings


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"DTENSOR_JOBS": "a:1,,b:1"}, r"DTENSOR_JOBS has an empty entry: 'a:1,,b:1'. Write 'host:port'"),
        ({"DTENSOR_JOBS": "a:1,"}, r"DTENSOR_JOBS has an empty entry"),
        ({"DTENSOR_JOBS": "a"}, r"without a host or port: 'a'. Write"),
        ({"DTENSOR_JOBS": ":1"}, r"without a host or port: ':1'"),
        ({"DTENSOR_JOBS": "a:b"}, r"without a host or port: 'a:b'"),
        ({"DTENSOR_JOBS": "a:0"}, r"without a host or port: 'a:0'"),
        ({"DTENSOR_JOBS": "a:65536"}, r"without a host or port: 'a:65536'"),
        ({"DTENSOR_JOBS": "::1:80"}, r"without brackets: '::1:80'"),
        ({"DTENSOR_JOBS": "a:1,b:1,a:1"}, r"names 'a:1' more than once"),
        ({"DTENSOR_CLIENT_ID": "1"}, r"DTENSOR_CLIENT_ID must be an int from 0 to 0.*1 client\(s\).*got '1'"),
        ({"DTENSOR_JOBS": JOBS, "DTENSOR_CLIENT_ID": "2"}, r"from 0 to 1, .*2 client\(s\).*got '2'"),
        ({"DTENSOR_JOBS": JOBS, "DTENSOR_CLIENT_ID": "-1"}, r"got '-1'. The ids follow"),
        ({"DTENSOR_JOBS": JOBS, "DTENSOR_CLIENT_ID": "one"}, r"got 'one'"),
        ({"DTENSOR_ENABLE_HEARTBEAT": "yes"}, r"DTENSOR_ENABLE_HEARTBEAT must be one of .*'true'.*got 'yes'"),
    ],
)
def test_a_malformed_environment_is_named(environment, says):
    with pytest.raises(ArgumentError, match=says):
        client_settings(environment)
