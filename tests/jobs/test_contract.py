"""What a job says about its checkpoints: what is believed of it, how it is asked for one, and what is an answer."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remediation.contract import (
    ACK,
    ASK_BY,
    ASK_DEADLINE,
    CHECKPOINT_AT,
    CHECKPOINT_LOCATION,
    CHECKPOINT_STEP,
    Checkpoint,
    Freshness,
    Way,
    asking_of,
    checkpoint_of,
    has_answered,
)
from remediation.objects import WorkloadView
from tests.acting.views import AT, pod, workload

KNOWN, UNKNOWN, LOST = Freshness.KNOWN, Freshness.UNKNOWN, Freshness.LOST
SAVED = AT - timedelta(minutes=30)
S3 = "s3://checkpoints/llama/100"
TOLD = {CHECKPOINT_AT: "2026-03-04T11:30:00Z", CHECKPOINT_STEP: "100", CHECKPOINT_LOCATION: S3}
LONGEST_S = 600.0
PODS = (pod("llama-0", empty_dirs=("scratch",), memory_dirs=("shm",), host_dirs=("lustre",)), pod("llama-1"))


def job(told: dict[str, str], **fields) -> WorkloadView:
    return workload(annotations=tuple(told.items()), **fields)


def last(told: dict[str, str], *, pods=PODS, measured: datetime | None = None) -> Checkpoint:
    return checkpoint_of(job(told), pods, AT, measured)


def told_at(said: str) -> dict[str, str]:
    return TOLD | {CHECKPOINT_AT: said}


def lies_at(place: str) -> dict[str, str]:
    return TOLD | {CHECKPOINT_LOCATION: place}


def minutes(count: float) -> timedelta:
    return timedelta(minutes=count)


# ------------------------------------------------------------------------------------------------ the last checkpoint


@pytest.mark.parametrize(
    ("told", "freshness", "at", "step", "why"),
    [
        pytest.param(TOLD, KNOWN, SAVED, 100,
                     "checkpoint of step 100 from 2026-03-04 11:30:00 UTC at s3://checkpoints/llama/100",
                     id="all is said"),
        pytest.param(TOLD | {CHECKPOINT_STEP: ""}, KNOWN, SAVED, None, "checkpoint from 2026-03-04 11:30:00",
                     id="a step is welcome, and not needed"),
        pytest.param(TOLD | {CHECKPOINT_STEP: "latest"}, KNOWN, SAVED, None, "checkpoint from", id="a step in words"),
        pytest.param(TOLD | {CHECKPOINT_STEP: "-5"}, KNOWN, SAVED, None, "checkpoint from", id="a step below zero"),
        pytest.param(TOLD | {CHECKPOINT_STEP: "٣"}, KNOWN, SAVED, None, "checkpoint from", id="another script"),
        pytest.param(TOLD | {CHECKPOINT_STEP: "9" * 18}, KNOWN, SAVED, 10**18 - 1, "of step 999", id="a huge step"),
        pytest.param(TOLD | {CHECKPOINT_STEP: "9" * 5000}, KNOWN, SAVED, None, "checkpoint from",
                     id="one that no number holds"),
        pytest.param({}, UNKNOWN, None, None, "says nothing of checkpoints", id="nothing is said"),
        pytest.param({CHECKPOINT_STEP: "100"}, UNKNOWN, None, 100, "says nothing of checkpoints", id="only a step"),
        pytest.param(told_at("yesterday"), UNKNOWN, None, 100, "checkpoint-at is no time: yesterday",
                     id="a time that is none"),
        pytest.param(told_at("1772623800"), UNKNOWN, None, 100, "is no time", id="unix seconds"),
        pytest.param(told_at("2026-03-04T11:30:00"), UNKNOWN, None, 100, "has no time zone: 2026-03-04T11:30:00",
                     id="a time without a zone"),
        pytest.param(told_at("2026-03-04"), UNKNOWN, None, 100, "has no time zone", id="a date"),
        pytest.param(told_at("0001-01-01T00:00:00+14:00"), UNKNOWN, None, 100, "is no time",
                     id="a zone that leads before the first year"),
        pytest.param(told_at("9999-12-31T23:59:59-14:00"), UNKNOWN, None, 100, "is no time", id="or beyond the last"),
        pytest.param(told_at("x" * 100_000), UNKNOWN, None, 100, "xxx...", id="a document in place of a time"),
        pytest.param(told_at("2026-03-04T12:30:00+01:00"), KNOWN, SAVED, 100, "11:30:00 UTC", id="another zone"),
        pytest.param(told_at("2026-03-04T11:30:00.123456Z"), KNOWN, SAVED + timedelta(microseconds=123456), 100,
                     "11:30:00 UTC", id="with its fractions"),
        pytest.param(told_at("2026-03-04T12:02:00Z"), KNOWN, AT + minutes(2), 100, "12:02:00",
                     id="a clock that runs two minutes ahead"),
        pytest.param(told_at("2026-03-04T12:02:01Z"), UNKNOWN, None, 100, "from the future: 2026-03-04 12:02",
                     id="one that runs further ahead"),
        pytest.param(told_at("1970-01-01T00:00:00Z"), KNOWN, datetime(1970, 1, 1, tzinfo=UTC), 100, "1970-01-01",
                     id="an old one is known; how old is too old is policy"),
        pytest.param(lies_at(""), UNKNOWN, SAVED, 100, "says not where its checkpoint lies", id="no place"),
        pytest.param(lies_at("  "), UNKNOWN, SAVED, 100, "says not where its checkpoint lies", id="a blank one"),
    ],
)  # fmt: skip
def test_the_last_checkpoint(
    told: dict[str, str], freshness: Freshness, at: datetime | None, step: int | None, why: str
) -> None:
    found = last(told)
    assert (found.freshness, found.at, found.step) == (freshness, at, step)
    assert why in found.why
    assert found.is_known is (freshness is KNOWN)


@pytest.mark.parametrize(
    ("place", "freshness", "why"),
    [
        pytest.param(S3, KNOWN, "at s3://checkpoints/llama/100", id="an object store"),
        pytest.param("gs://memory/llama", KNOWN, "at gs://memory/llama", id="whatever its bucket is called"),
        pytest.param("pvc:checkpoints/llama", KNOWN, "at pvc:checkpoints", id="a claim"),
        pytest.param("volume:data/llama/100", KNOWN, "at volume:data", id="a volume of its pods that outlives them"),
        pytest.param("volume:scratch/llama", LOST, "lies on emptyDir scratch, which ends with it", id="an emptyDir"),
        pytest.param("volume: scratch /llama", LOST, "emptyDir scratch", id="however it is spaced"),
        pytest.param("VOLUME:scratch", LOST, "emptyDir scratch", id="or spelt"),
        pytest.param("volume:shm", LOST, "emptyDir shm", id="an emptyDir in memory"),
        pytest.param("volume:lustre/llama", UNKNOWN, "a folder of the node: name the file system if nodes share it",
                     id="a hostPath, which may be a disk of the node or a file system that all share"),
        pytest.param("volume:Scratch", KNOWN, "volume:Scratch", id="names of volumes have no capitals"),
        pytest.param("emptyDir:scratch", LOST, "lies on emptyDir:scratch, which ends with it", id="a word for it"),
        pytest.param("emptyDir", LOST, "emptyDir", id="without a name"),
        pytest.param("emptydir/scratch", LOST, "emptydir/scratch", id="as a path"),
        pytest.param("hostPath:/mnt/nvme", LOST, "hostPath:/mnt/nvme", id="a disk of the node"),
        pytest.param("local:nvme0", LOST, "local:nvme0", id="a local one"),
        pytest.param("tmpfs:/dev/shm", LOST, "tmpfs", id="memory"),
        pytest.param("memory", LOST, "memory", id="memory by its name"),
        pytest.param("/checkpoints/100", UNKNOWN, "no path says on which storage", id="a path in a container"),
        pytest.param("./out", UNKNOWN, "no path says", id="a relative one"),
        pytest.param("file:///dev/shm/100", UNKNOWN, "no path says", id="a path as a URL"),
        pytest.param("s3://" + "x" * 1000, KNOWN, "xxx...", id="people are shown its beginning"),
    ],
)  # fmt: skip
def test_where_it_lies_decides_whether_it_outlives_pod_and_node(place: str, freshness: Freshness, why: str) -> None:
    found = last(lies_at(place))
    assert (found.freshness, found.at, found.step) == (freshness, SAVED, 100)
    assert why in found.why
    assert len(found.why) < 300


def test_what_a_volume_is_only_pods_can_say() -> None:
    """While a job is stopped it has none, and an emptyDir is no better for that."""
    assert last(lies_at("volume:scratch"), pods=()).freshness is UNKNOWN
    assert last(lies_at("volume:data"), pods=()).at == SAVED
    assert last(TOLD, pods=()).freshness is KNOWN
    assert last(lies_at("emptyDir:scratch"), pods=()).freshness is LOST


@pytest.mark.parametrize(
    ("told", "measured", "freshness", "at"),
    [
        pytest.param({CHECKPOINT_LOCATION: S3}, SAVED, KNOWN, SAVED, id="a metric alone says when"),
        pytest.param({}, SAVED, UNKNOWN, SAVED, id="but not where"),
        pytest.param(TOLD, SAVED + minutes(20), KNOWN, SAVED + minutes(20), id="newer than the annotation"),
        pytest.param(TOLD, SAVED - minutes(20), KNOWN, SAVED, id="older than the annotation"),
        pytest.param({CHECKPOINT_LOCATION: S3}, AT + minutes(5), UNKNOWN, None, id="from the future"),
        pytest.param(TOLD, AT + minutes(5), UNKNOWN, None, id="from the future, beside an annotation"),
        pytest.param(told_at("soon"), SAVED, UNKNOWN, None, id="beside an annotation that says nothing"),
        pytest.param(lies_at("emptyDir"), SAVED, LOST, SAVED, id="of one that does not last"),
    ],
)
def test_a_metric_may_say_when_it_was_committed(
    told: dict[str, str], measured: datetime, freshness: Freshness, at: datetime | None
) -> None:
    found = last(told, measured=measured)
    assert (found.freshness, found.at) == (freshness, at)


WORDS = st.text(max_size=40) | st.sampled_from([*TOLD.values(), "9" * 30, "volume:x", "0001-01-01T00:00:00+14:00"])


@given(WORDS, WORDS, WORDS, st.none() | st.datetimes(timezones=st.just(UTC)), st.booleans())
def test_whatever_a_job_says_something_comes_of_it(at, step, place, measured, has_pods: bool) -> None:
    told = {CHECKPOINT_AT: at, CHECKPOINT_STEP: step, CHECKPOINT_LOCATION: place}
    found = last(told, measured=measured, pods=PODS if has_pods else ())
    assert found.why
    if found.is_known:
        assert found.at is not None
        assert found.at <= AT + minutes(2)
        assert place.strip()
    assert found.step is None or 0 <= found.step < 2**63


# --------------------------------------------------------------------------------------------------- how it is asked


@pytest.mark.parametrize(
    ("how", "way", "possible", "wrong"),
    [
        pytest.param("", None, False, "", id="nothing is said: it is not asked"),
        pytest.param("annotation", Way.ANNOTATION, True, "", id="by an annotation"),
        pytest.param(" annotation ", Way.ANNOTATION, True, "", id="with blanks around it"),
        pytest.param("sigterm", Way.SIGTERM, False, "", id="it saves on SIGTERM, so a stop asks it"),
        pytest.param("Annotation", None, False, "is Annotation, which is neither a URL nor one of annotation, sigterm",
                     id="words have no capitals"),
        pytest.param("exec", None, False, "neither a URL nor one of", id="another way"),
        pytest.param("y" * 9000, None, False, "yyy...", id="a document"),
    ],
)  # fmt: skip
def test_how_a_job_is_asked(how: str, way: Way | None, possible: bool, wrong: str) -> None:
    asking = asking_of(job({ASK_BY: how}), LONGEST_S)
    assert (asking.way, asking.url, asking.possible, asking.deadline_s) == (way, "", possible, LONGEST_S)
    assert wrong in asking.wrong
    assert bool(wrong) == bool(asking.wrong)


@pytest.mark.parametrize(
    "url",
    [
        "http://saver.train.svc",
        "http://saver.train.svc/",
        "http://saver.train.svc:8080/checkpoint",
        "https://saver.train.svc.cluster.local/v1/save?wait=0&tag=x%20y",
        "http://llama-head-0.train.svc:80",
    ],
)
def test_a_service_of_its_own_namespace_is_asked_by_http(url: str) -> None:
    asking = asking_of(job({ASK_BY: url}), LONGEST_S)
    assert (asking.url, asking.possible, asking.wrong) == (url, True, "")


@pytest.mark.parametrize(
    "url",
    [
        pytest.param("http://saver.other.svc/", id="another namespace"),
        pytest.param("http://saver/", id="a bare name, which is ours to resolve"),
        pytest.param("http://saver.train/", id="without svc"),
        pytest.param("http://saver.train.svc.evil.example/", id="a domain that only begins like it"),
        pytest.param("http://evil.example/saver.train.svc", id="a path that looks like it"),
        pytest.param("http://169.254.169.254/latest/meta-data", id="the cloud's metadata"),
        pytest.param("http://kubernetes.default.svc/", id="the API server"),
        pytest.param("http://.train.svc/", id="no name"),
        pytest.param("http://-saver.train.svc/", id="no name that DNS knows"),
        pytest.param("http://pod.saver.train.svc/", id="a pod behind the Service"),
        pytest.param("http://user@saver.train.svc/", id="a user"),
        pytest.param("http://user:pass@saver.train.svc/", id="credentials"),
        pytest.param("http://saver.train.svc:80@evil.example/", id="a Service that is the user of another host"),
        pytest.param("http://saver.train.svc@evil.example/", id="the same without a port"),
        pytest.param("http://evil.example#@saver.train.svc/", id="a fragment before it"),
        pytest.param("http://evil.example?.train.svc/", id="a query before it"),
        pytest.param("http://saver.train.svc?@evil.example/", id="a query that begins in the host"),
        pytest.param("http://saver.train.svc#@evil.example/", id="a fragment that begins in the host"),
        pytest.param("http://saver.train.svc\\@evil.example/", id="a backslash"),
        pytest.param("http://evil.example\\.train.svc/", id="a backslash as a slash"),
        pytest.param("http://saver.train.svc:/", id="an empty port"),
        pytest.param("http://saver.train.svc:8080x/", id="a port that is none"),
        pytest.param("http://saver.train.svc\n/", id="a line's end"),
        pytest.param("http://saver.train.svc/ HTTP/1.1\r\nX: y", id="a second header"),
        pytest.param("http://saver.train\u3002svc/", id="a full stop of another script"),
        pytest.param("http://SAVER.train.svc/", id="capitals"),
        pytest.param("http://[::1].train.svc/", id="an address in brackets"),
        pytest.param("http:///saver.train.svc/", id="no host"),
    ],
)
def test_nobody_may_have_us_call_whom_they_like(url: str) -> None:
    asking = asking_of(job({ASK_BY: url}), LONGEST_S)
    assert (asking.way, asking.url, asking.possible) == (None, "", False)
    assert "is no Service of its own namespace (NAME.train.svc)" in asking.wrong.replace("which ", "")


@pytest.mark.parametrize("url", ["ftp://saver.train.svc/", "HTTP://saver.train.svc/", "file:///etc/passwd", "//x"])
def test_no_other_scheme_is_spoken(url: str) -> None:
    asking = asking_of(job({ASK_BY: url}), LONGEST_S)
    assert not asking.possible
    assert "neither a URL nor one of" in asking.wrong


@given(st.text("abc.-/:@?#\\% \nsvctrain", max_size=40))
def test_a_url_that_is_accepted_leads_to_the_namespace_by_every_reading(rest: str) -> None:
    url = asking_of(job({ASK_BY: f"http://{rest}"}), LONGEST_S).url
    if url:
        host = url.removeprefix("http://").split("/", 1)[0]
        assert not set(host) & set("@?#\\% \n")
        name, _, domain = host.split(":")[0].partition(".")
        assert name
        assert domain in ("train.svc", "train.svc.cluster.local")


def test_a_namespace_is_a_name_and_no_pattern() -> None:
    """Namespaces have no full stops; if one ever had, it would stand for itself."""
    odd = job({ASK_BY: "http://saver.txain.svc/"}, namespace="t.ain")
    assert not asking_of(odd, LONGEST_S).possible


@pytest.mark.parametrize(
    ("said", "deadline_s", "wrong"),
    [
        pytest.param("", LONGEST_S, "", id="none of its own"),
        pytest.param("90s", 90, "", id="a shorter one"),
        pytest.param("1m30s", 90, "", id="in two parts"),
        pytest.param("1h", LONGEST_S, "", id="a longer one is cut to policy's"),
        pytest.param("0s", 0, "", id="none at all"),
        pytest.param("9" * 400 + "w", LONGEST_S, "", id="for ever"),
        pytest.param("soon", LONGEST_S, "checkpoint-deadline is no time", id="no time: policy's holds"),
        pytest.param("-5m", LONGEST_S, "checkpoint-deadline is no time", id="a negative one"),
        pytest.param("300", LONGEST_S, "checkpoint-deadline is no time", id="a bare number"),
    ],
)
def test_how_long_its_answer_is_waited_for(said: str, deadline_s: float, wrong: str) -> None:
    asking = asking_of(job({ASK_BY: "annotation", ASK_DEADLINE: said}), LONGEST_S)
    assert (asking.deadline_s, asking.possible) == (deadline_s, True)
    assert wrong in asking.wrong
    assert bool(wrong) == bool(asking.wrong)


# -------------------------------------------------------------------------------------------------- what is an answer


@pytest.mark.parametrize(
    ("told", "answered"),
    [
        pytest.param({}, False, id="nothing"),
        pytest.param(TOLD, False, id="the checkpoint of before"),
        pytest.param(TOLD | {ACK: "gw-1"}, True, id="the id of the request"),
        pytest.param({ACK: "gw-1"}, True, id="the id alone: the job has said that it has saved"),
        pytest.param(TOLD | {ACK: "gw-0"}, False, id="the id of another request"),
        pytest.param(TOLD | {ACK: "GW-1"}, False, id="almost the id"),
        pytest.param(told_at("2026-03-04T11:59:00Z"), True, id="a commit since it was asked, whatever led to it"),
        pytest.param(told_at("2026-03-04T11:58:00Z"), False, id="a commit in the moment when it was asked"),
        pytest.param(told_at("2026-03-04T11:59:00Z") | {CHECKPOINT_LOCATION: ""}, False, id="a commit, but where?"),
        pytest.param(lies_at("emptyDir") | {CHECKPOINT_AT: "2026-03-04T11:59:00Z"}, False,
                     id="a commit that ends with its pod"),
        pytest.param(lies_at("emptyDir") | {ACK: "gw-1"}, False, id="the id, for one that ends with its pod"),
    ],
)  # fmt: skip
def test_what_counts_as_an_answer(told: dict[str, str], answered: bool) -> None:
    asked_at = AT - minutes(2)
    assert has_answered(job(told), "gw-1", asked_at, last(told)) is answered
