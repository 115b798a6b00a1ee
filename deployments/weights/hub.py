"""Models of a hub: what they are, and their files in the hub's cache, from where vLLM loads them.

`HF_TOKEN`, `HF_HOME`, `HF_ENDPOINT` and `HF_HUB_OFFLINE` mean what they mean to huggingface_hub, which reads them when
it is imported. So the import is inside the functions.
"""

import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from deployments.weights.errors import WeightsError

_TIMEOUT_S = 15.0

_OTHER_FORMATS = (
    "*.pth",
    "*.pt",
    "*.gguf",
    "*.onnx",
    "*.h5",
    "*.msgpack",
    "*.ot",
    "original/*",
    "onnx/*",
    "openvino/*",
)
"""Files that vLLM does not load by default."""

_OWN_LOADING = ("download_dir", "load_format", "ignore_patterns")
"""Engine arguments that change which files vLLM loads, or from where: it fetches these itself."""


def config_folder(source: str, file: str = "config.json") -> Path | None:
    """The folder with the small `file` of a hub's model, fetched if need be; None if the model has none. Raises
    WeightsError."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import RemoteEntryNotFoundError

    def download(files: Sequence[str] | None) -> str:
        return hf_hub_download(source, file, local_files_only=files is None)

    try:
        return Path(_asked(source, None, download)).parent
    except RemoteEntryNotFoundError:
        return None


def cached_config_folder(source: str, revision: str | None = None) -> Path | None:
    """The folder with `config.json` of a hub's model, if the cache has it."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        file = try_to_load_from_cache(source, "config.json", revision=revision)
    except HFValidationError:
        return None
    return Path(file).parent if isinstance(file, str) else None


def fetch(source: str, engine_kwargs: Mapping[str, Any]) -> Path | None:
    """The folder with all files of a hub's model that vLLM loads, fetched if need be; None if vLLM has to fetch them
    itself. Raises WeightsError."""
    if any(engine_kwargs.get(name) not in (None, "auto") for name in _OWN_LOADING):
        return None
    from huggingface_hub import snapshot_download

    revision = engine_kwargs.get("revision")

    def download(files: Sequence[str] | None) -> str:
        cached = cached_config_folder(source, revision) if files is None else None
        known = [str(file.relative_to(cached)) for file in cached.rglob("*")] if cached is not None else files or ()
        return snapshot_download(
            source, revision=revision, ignore_patterns=_ignored(known), local_files_only=files is None
        )

    return Path(_asked(source, revision, download))


def download(
    source: str, revision: str | None, folder: Path, say: Callable[[str], None], every_s: float = 30.0
) -> tuple[str, dict[str, int]]:
    """Downloads the files of a hub's model that vLLM loads into `folder`. Continues what was interrupted.

    Returns the commit, and each file's size in bytes. `say` is told the progress every `every_s` seconds. Raises
    WeightsError.
    """
    from huggingface_hub import HfApi, snapshot_download

    try:
        info = HfApi().model_info(source, revision=revision or "main", files_metadata=True, timeout=_TIMEOUT_S)
        sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
        ignored = _ignored(list(sizes))
        files = {name: size for name, size in sizes.items() if not any(fnmatch(name, pattern) for pattern in ignored)}
        total = sum(files.values())
        folder.mkdir(parents=True, exist_ok=True)
        missing, free = total - _bytes_in(folder), shutil.disk_usage(folder).free
        if missing > free:
            raise WeightsError(
                f"{_size(missing)} of {source} are missing, and the volume has {_size(free)}. Enlarge it"
            )
        for path in (folder / name for name, size in files.items() if _differs(folder / name, size)):
            path.unlink()  # the hub's client takes what has the name
        with _repeated(lambda: say(f"{_size(_bytes_in(folder))} of {_size(total)}"), every_s):
            snapshot_download(source, revision=info.sha, local_dir=folder, ignore_patterns=ignored)
    except WeightsError:
        raise
    except Exception as error:
        if (said := _explained(source, error, error if _is_of_connection(error) else None)) is None:
            raise
        raise WeightsError(said) from None
    return str(info.sha), files


def _differs(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size != size


def _bytes_in(folder: Path) -> int:
    """With those of partial files, which the hub's client has in a folder of its own in there."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


@contextmanager
def _repeated(call: Callable[[], None], every_s: float) -> Iterator[None]:
    """Calls it every `every_s` seconds, in a thread, while the block runs."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(every_s):
            with suppress(OSError):  # a file that was counted has just been renamed
                call()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _ignored(files: Sequence[str]) -> list[str]:
    """The files that vLLM does not load of those of a model: it prefers safetensors in Hugging Face's names."""
    has = [file for file in files if file.endswith(".safetensors")]
    ignored = [*_OTHER_FORMATS, *(["*.bin"] if has else [])]
    return [*ignored, "consolidated*"] if any(not file.startswith("consolidated") for file in has) else ignored


def _asked(source: str, revision: str | None, download: Callable[[Sequence[str] | None], str]) -> str:
    """What `download` returns, which is told the model's files, or None if only the cache can be asked. Raises
    WeightsError, which says what to do."""
    from huggingface_hub import constants
    from huggingface_hub.errors import RemoteEntryNotFoundError

    unreachable: Exception | None = None
    files: Sequence[str] | None = None
    try:
        try:
            files = None if constants.HF_HUB_OFFLINE else _files(source, revision)
        except Exception as error:
            if not _is_of_connection(error):
                raise
            unreachable = error
        return download(files)
    except RemoteEntryNotFoundError:
        raise
    except Exception as error:
        if (said := _explained(source, error, unreachable)) is None:
            raise
        raise WeightsError(said) from None


def _files(source: str, revision: str | None) -> list[str]:
    """Asks once, while the functions that download try six times, for half a minute."""
    from huggingface_hub import HfApi

    info = HfApi().model_info(source, revision=revision or "main", timeout=_TIMEOUT_S)
    return [file.rfilename for file in info.siblings or ()]


def _is_of_connection(error: Exception) -> bool:
    """Whether it is one of httpx, or of the successor that huggingface_hub uses."""
    return type(error).__module__.startswith("http")


def _explained(source: str, error: Exception, unreachable: Exception | None) -> str | None:
    """What a person should do about it; None if that is unknown. `unreachable`: why the hub was not asked."""
    from huggingface_hub import constants, errors, get_token

    cache, here = f"the cache {constants.HF_HUB_CACHE}", "copy the model to this machine, and name its folder"
    match error:
        case errors.GatedRepoError():
            token = "HF_TOKEN is of an account without access" if get_token() else "HF_TOKEN is not set"
            fix = f"Accept its conditions at {constants.ENDPOINT}/{source}, and export HF_TOKEN=hf_… of that account"
            return f"The model {source} is gated, and {token}. {fix}"
        case errors.RepositoryNotFoundError():
            fix = "Correct its name; for a private one, export HF_TOKEN=hf_… of an account with access"
            return f"The hub has no model {source}, or it is private. {fix}"
        case errors.RevisionNotFoundError():
            return f"The model {source} has no such revision. Correct the revision"
        case errors.HFValidationError():
            fix = "Name a folder, a hub's id (`owner/name`), or `package:` and a name"
            return f"'{source}' is neither a folder nor a hub's id. {fix}"
        case errors.OfflineModeIsEnabled() | errors.LocalEntryNotFoundError() if constants.HF_HUB_OFFLINE:
            return f"The model {source} is not in {cache}, and HF_HUB_OFFLINE is set. Unset it; or {here}"
        case Exception() if unreachable is not None or _is_of_connection(error):
            why = f"the hub {constants.ENDPOINT} cannot be reached ({_first_cause(unreachable or error)})"
            fix = f"HTTPS_PROXY names a proxy, HF_ENDPOINT a mirror; or {here}"
            return f"The model {source} is not in {cache}, and {why}. {fix}"
        case errors.HfHubHTTPError():
            status = getattr(error.response, "status_code", "an error")
            return f"The hub {constants.ENDPOINT} answers {status} for {source}. Try again later"
        case OSError() if error.errno is not None:
            return f"The model {source} cannot be kept in {cache}: {error}. HF_HOME names another folder"
        case errors.FileMetadataError():
            return f"{constants.ENDPOINT} does not answer as a model hub: {error}. Correct HF_ENDPOINT"
    return None


def _first_cause(error: BaseException) -> BaseException:
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return error
