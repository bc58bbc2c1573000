"""How a connection is encrypted, and the server verified."""

from __future__ import annotations

import ssl
from typing import NamedTuple

from postroom.errors import ConfigError


class Tls(NamedTuple):
    """The encryption of a connection, and the certificates to verify.

    mode        `required`: encrypted, the server is not verified; `verify_ca`: its certificate is
                checked; `verify_identity`: its name, too
    ca          trusted certificates; by default those of the system
    cert, key   the client's own certificate and key; the key may be in the same file
    """

    mode: str = "verify_identity"
    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    def context(self) -> ssl.SSLContext:
        """Create the TLS context; raises ConfigError for an unreadable file."""
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.mode != "verify_identity":
                context.check_hostname = False
            if self.mode == "required":
                context.verify_mode = ssl.CERT_NONE
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key)
        except OSError as error:
            files = [name for name in (self.ca, self.cert, self.key) if name]
            raise ConfigError(f"TLS: cannot use {', '.join(files)}: {error}") from error
        return context
