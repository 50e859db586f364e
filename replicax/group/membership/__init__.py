"""Which workers take part in a collective, where workers may come and go."""

from replicax.group.membership.meeting import Meeting as Meeting, MemberLostError as MemberLostError, Quorum as Quorum
