"""When the sun rises and sets, computed."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta


def sun(latitude: float, longitude: float, day: date) -> tuple[datetime, datetime] | None:
    """Sunrise and sunset in UTC; None where the sun does not do both on that day. Degrees, east and north positive.

    NOAA's equations (the spreadsheet of its Global Monitoring Laboratory, after Meeus, "Astronomical Algorithms"): good to about
    a minute up to 72 degrees of latitude, for a flat horizon and ordinary refraction.
    """
    midnight = datetime(day.year, day.month, day.day, tzinfo=UTC)
    times = []
    for sign in (-1, 1):
        minutes = 720 - 4 * longitude  # about noon; then twice nearer, as the sun moves on meanwhile
        for _ in range(3):
            declination, equation = _sun_at(midnight + timedelta(minutes=minutes))
            height = math.cos(math.radians(90.833)) / (math.cos(math.radians(latitude)) * math.cos(declination))
            cosine = height - math.tan(math.radians(latitude)) * math.tan(declination)
            if abs(cosine) > 1:
                return None
            minutes = 720 - 4 * longitude - equation + sign * 4 * math.degrees(math.acos(cosine))
        times.append(midnight + timedelta(minutes=minutes))
    return times[0], times[1]


def _sun_at(moment: datetime) -> tuple[float, float]:
    """The sun's declination in radians, and the equation of time in minutes."""
    century = (moment.timestamp() / 86400 + 2440587.5 - 2451545) / 36525
    longitude = math.radians((280.46646 + century * (36000.76983 + century * 0.0003032)) % 360)
    anomaly = math.radians(357.52911 + century * (35999.05029 - 0.0001537 * century))
    eccentricity = 0.016708634 - century * (0.000042037 + 0.0000001267 * century)
    centre = (
        math.sin(anomaly) * (1.914602 - century * (0.004817 + 0.000014 * century))
        + math.sin(2 * anomaly) * (0.019993 - 0.000101 * century)
        + math.sin(3 * anomaly) * 0.000289
    )
    node = math.radians(125.04 - 1934.136 * century)
    apparent = longitude + math.radians(centre - 0.00569 - 0.00478 * math.sin(node))
    seconds = 21.448 - century * (46.815 + century * (0.00059 - century * 0.001813))
    tilt = math.radians(23 + (26 + seconds / 60) / 60 + 0.00256 * math.cos(node))
    y = math.tan(tilt / 2) ** 2
    equation = 4 * math.degrees(
        y * math.sin(2 * longitude)
        - 2 * eccentricity * math.sin(anomaly)
        + 4 * eccentricity * y * math.sin(anomaly) * math.cos(2 * longitude)
        - 0.5 * y * y * math.sin(4 * longitude)
        - 1.25 * eccentricity * eccentricity * math.sin(2 * anomaly)
    )
    return math.asin(math.sin(tilt) * math.sin(apparent)), equation
