"""Every error that trioserve raises, and the one table that says how each looks over HTTP.

Owns: the exception classes and their status, type and code.
Must not know: HTTP headers, JSON, or who raises what.

The tree follows what a caller does about an error, not where it happens::

    TrioserveError
      ParamError(param)            the request is wrong: change it
        ContextLengthError           ... make the prompt shorter
        ModelNotFoundError           ... ask for a model that is served
        RequestNotFoundError         ... it has ended, or never was
      AuthenticationError          show a key
      QueueFullError(retry_after)  try again later
      DeadlineError                allow it more time, or ask for less
      EngineStoppingError          go to another server
      EngineClosedError            the engine has ended
        EngineFailedError            ... because of an error
      DeviceError                  the device failed, which ends the engine
      GenerationError(request_id)  this request failed; others did not
        RequestCancelledError        ... somebody ended it
        ChoiceFailedError(index)
      StructureError               a choice can't be what it was to be
      ModelError                   a model can't be found, fetched or read: nothing was loaded
      InternalError                a bug of ours: please report it
      InvariantError               ... found by one of our own checks
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs


class TrioserveError(Exception):
    """The base of every error raised on purpose by trioserve. Its text is one or more plain sentences."""

    @property
    def param(self) -> str | None:
        """The request field at fault, or None."""
        return None


class ParamError(TrioserveError):
    """A parameter of a request is wrong. Raised before any work is done.

    ``param`` names the field as the caller wrote it ("n", "messages.0.content"); ``code`` is a word for programs.
    """

    def __init__(self, message: str, param: str | None, code: str | None = None) -> None:
        super().__init__(message)
        self._param = param
        self.code = code

    @property
    def param(self) -> str | None:
        return self._param

    def rename(self, names: Mapping[str, str]) -> None:
        """Name the field as its caller does, where ``names`` has another name for it."""
        if self._param is not None:
            self._param = names.get(self._param, self._param)


class ContextLengthError(ParamError):
    """The prompt, or the prompt and the tokens asked for, do not fit the model's context.

    Clients search the message for "maximum context length is N tokens".
    """

    def __init__(self, context_length: int, prompt_tokens: int, param: str | None, *, at_least: bool = False) -> None:
        bound = "at least " if at_least else ""
        super().__init__(
            f"This model's maximum context length is {context_length} tokens. "
            f"However, your prompt has {bound}{prompt_tokens} tokens. Please shorten it.",
            param,
        )
        self.context_length = context_length
        self.prompt_tokens = prompt_tokens


class ModelNotFoundError(ParamError):
    """A request names a model that this server does not serve."""

    def __init__(self, model: str, served: tuple[str, ...]) -> None:
        super().__init__(f"The model {model!r} does not exist here. Served: {', '.join(served)}.", "model")


class RequestNotFoundError(ParamError):
    """There is no running request, or no choice of it, with that name."""


class AuthenticationError(TrioserveError):
    """The request shows no API key, or one that is not the server's. The text never tells what it showed."""

    def __init__(self, message: str = "This server wants an API key, as Authorization: Bearer KEY.") -> None:
        super().__init__(message)


class DeadlineError(TrioserveError):
    """The request took longer than its deadline allows, and was ended."""

    def __init__(self, message: str = "The request did not end within its deadline.") -> None:
        super().__init__(message)


class QueueFullError(TrioserveError):
    """No room for the whole request in the waiting queue; nothing of it was queued. ``retry_after`` is in seconds."""

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class EngineStoppingError(TrioserveError):
    """The engine finishes what it has and takes nothing new. ``retry_after`` is in seconds."""

    def __init__(self, message: str = "The server is shutting down.", retry_after: int = 5) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class EngineClosedError(TrioserveError):
    """The engine has ended."""

    def __init__(self, message: str = "The engine is closed.") -> None:
        super().__init__(message)


class EngineFailedError(EngineClosedError):
    """An error has ended the engine: the ``__cause__``, which this says again to whoever still waited (FAN-23)."""

    def __init__(self, cause: BaseException) -> None:
        ours = isinstance(cause, TrioserveError)
        super().__init__(str(cause) if ours else f"The engine failed: {type(cause).__name__}: {cause}")
        self.__cause__ = cause


class DeviceError(TrioserveError):
    """A step failed on the device, which ends the engine; ``__cause__`` is what the device raised."""


class GenerationError(TrioserveError):
    """One request failed while it ran."""

    def __init__(self, message: str, request_id: str) -> None:
        super().__init__(message)
        self.request_id = request_id


class RequestCancelledError(GenerationError):
    """Somebody ended the request before there was anything to answer."""


class ChoiceFailedError(GenerationError):
    """One choice of a request failed, and with it the request."""

    def __init__(self, message: str, request_id: str, index: int) -> None:
        super().__init__(message, request_id)
        self.index = index


class StructureError(TrioserveError):
    """A choice can't go on as it must: no token may follow, or a limit was reached half way."""


class ModelError(TrioserveError):
    """A model is unknown, or its files can't be fetched, are broken or unsupported. The message is one line."""


class InternalError(TrioserveError):
    """Something happened that should not be possible."""


class InvariantError(InternalError):
    """A consistency check of our own books failed."""


@attrs.frozen
class ErrorRow:
    """How an error class looks over HTTP: the status code, and the ``type`` and ``code`` of OpenAI's error envelope."""

    status: int
    type: str
    code: str | None


ERRORS: Final[dict[type[TrioserveError], ErrorRow]] = {
    ParamError: ErrorRow(400, "invalid_request_error", None),
    ContextLengthError: ErrorRow(400, "invalid_request_error", "context_length_exceeded"),
    ModelNotFoundError: ErrorRow(404, "invalid_request_error", "model_not_found"),
    RequestNotFoundError: ErrorRow(404, "invalid_request_error", "request_not_found"),
    AuthenticationError: ErrorRow(401, "authentication_error", "invalid_api_key"),
    DeadlineError: ErrorRow(504, "timeout_error", "deadline_exceeded"),
    QueueFullError: ErrorRow(429, "rate_limit_error", "queue_full"),
    EngineStoppingError: ErrorRow(503, "service_unavailable_error", "server_stopping"),
    EngineClosedError: ErrorRow(503, "service_unavailable_error", "engine_closed"),
    EngineFailedError: ErrorRow(500, "server_error", "engine_failed"),
    DeviceError: ErrorRow(500, "server_error", "device_failed"),
    GenerationError: ErrorRow(500, "server_error", "generation_failed"),
    RequestCancelledError: ErrorRow(409, "invalid_request_error", "request_cancelled"),
    # what the request demands cannot be had, and no retry would change that
    StructureError: ErrorRow(400, "invalid_request_error", "structure_failed"),
    ModelError: ErrorRow(500, "server_error", "model_error"),
    InternalError: ErrorRow(500, "server_error", "internal_error"),
    TrioserveError: ErrorRow(500, "server_error", "internal_error"),
}


def error_row(error: BaseException) -> ErrorRow:
    """The table row of ``error``: that of its nearest listed class; any other exception is an internal error."""
    for cls in type(error).__mro__:
        row = ERRORS.get(cls)
        if row is not None:
            if isinstance(error, ParamError) and error.code is not None:
                return attrs.evolve(row, code=error.code)
            return row
    return ERRORS[InternalError]
