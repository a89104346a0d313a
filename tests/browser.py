"""A headless Chromium for the tests of pages, which skip with the reason where there is none."""

import shutil
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


def start(profile: Path) -> Any:
    """Return selenium's driver of a browser that keeps a log of what it complains of."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="the page is opened through selenium")
    chromium = next((path for name in ("chromium", "google-chrome") if (path := shutil.which(name))), None)
    chromedriver = shutil.which("chromedriver")
    if not chromium or not chromedriver:
        pytest.skip("needs chromium and chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(chromedriver))
