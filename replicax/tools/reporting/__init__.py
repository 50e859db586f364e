"""The words that a training says to the person who watches it: once a job, from whichever process is the chief."""

from replicax.tools.reporting.chief import follows_others as follows_others, is_chief as is_chief
from replicax.tools.reporting.progress import Progress as Progress, progress as progress
