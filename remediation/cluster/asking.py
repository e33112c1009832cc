"""Asking a job for a checkpoint by HTTP: a POST to a Service of its own namespace (`remediation.contract`)."""

import requests

_TIMEOUT_S = 5.0
_OK = range(200, 300)


def ask_by_http(url: str, request: str, deadline_s: float) -> str:
    """Tell the job which checkpoint is asked for: why that failed, "" where it was taken in. No redirect is followed.

    The answer says only that the request was heard: that the checkpoint is there the job says by its annotations.
    """
    body = {"request": request, "deadline_seconds": deadline_s}
    try:
        with requests.Session() as session:
            session.trust_env = False  # a proxy has no business between Services
            with session.post(url, json=body, timeout=_TIMEOUT_S, allow_redirects=False, stream=True) as answer:
                code = answer.status_code
    except requests.RequestException as error:
        return f"{url} could not be asked for a checkpoint: {error}"
    return "" if code in _OK else f"{url} refused to be asked for a checkpoint: {code}"
