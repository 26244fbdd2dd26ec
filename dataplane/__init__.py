"""The data plane: vectors, texts, records and their tiers, in the process that uses them.

`DataPlane.open` is the door. What goes in and comes out are the values of `rows`, and every error is of `errors`' tree.
"""

from dataplane.config import DataPlaneConfig
from dataplane.filters import Attribute, Filter, check_attributes, parse_filter
from dataplane.rows import CollectionSpec, Hit, Location, Row, SearchQuery, SearchResult, StoredRow
from dataplane.state import StateStore
from dataplane.store import DataPlane

__all__ = [
    "Attribute",
    "CollectionSpec",
    "DataPlane",
    "DataPlaneConfig",
    "Filter",
    "Hit",
    "Location",
    "Row",
    "SearchQuery",
    "SearchResult",
    "StateStore",
    "StoredRow",
    "check_attributes",
    "parse_filter",
]
