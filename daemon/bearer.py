"""Who gpuwarden says it is in a request: by a bearer token, or nobody."""

import requests
from requests.auth import AuthBase


class Bearer(AuthBase):
    """A bearer token, or nobody ("") where there is none: then requests must not look for one in ~/.netrc either."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Sign the request."""
        if self._token:
            request.headers["Authorization"] = f"Bearer {self._token}"
        return request
