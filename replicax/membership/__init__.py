"""Which workers take part in a collective, where workers may come and go."""

from replicax.membership.meeting import Meeting as Meeting, MemberLostError as MemberLostError, Roll as Roll
from replicax.membership.opening import open_meeting as open_meeting
from replicax.membership.solo import SoloMeeting as SoloMeeting
