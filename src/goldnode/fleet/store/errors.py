"""Errors of the store: what the database refuses, and what the store itself refuses to do."""

from __future__ import annotations

from enum import StrEnum

from goldnode.core.errors import GoldnodeError


class StoreError(GoldnodeError):
    """The store cannot be read or written, or its content is wrong. Nothing was granted."""


class StoreUnavailableError(StoreError):
    """The store is away, locked, full or read-only for now. A later try may succeed."""


class StoreDamagedError(StoreError):
    """The log does not match its sealed heads, or a counter does not match the holds."""


class StaleEpochError(StoreError):
    """Another controller has taken over the rollout: this one must stop."""


class RefusalKind(StrEnum):
    """Reasons for a refused grant or return. Few and fixed: clients count them in metrics."""

    UNKNOWN_NODE = "unknown_node"
    UNKNOWN_GROUP = "unknown_group"
    NO_DOCUMENT = "no_document_in_force"
    NOT_YOUR_TURN = "not_your_turn"
    FROZEN = "frozen"
    DENIED = "digest_denied"
    OUT_ALREADY = "out_of_service_already"
    FULL = "failed_lock_semaphore_full"
    FAILED_BUFFER = "failed_buffer_full"
    PERSON = "release_by_a_person_only"
    STALE_EPOCH = "stale_epoch"


class GrantRefusedError(StoreError):
    """A grant or a return that the store refuses, with a kind for machines and a sentence for people."""

    def __init__(self, kind: RefusalKind, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.kind = kind
